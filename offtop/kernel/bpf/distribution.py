"""Commands that install a package on this machine's distribution."""

import platform


def install_command(deb: str, rpm: str) -> str:
    """Command that installs a package, given its Debian and its Fedora name.

    /etc/os-release identifies the distribution's family (os-release(5)); for an unknown one, both names are given.
    """
    try:
        release = platform.freedesktop_os_release()
    except OSError:  # the file does not exist
        release = {}
    families = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if families & {"debian", "ubuntu"}:
        return f"sudo apt install {deb}"
    if families & {"fedora", "rhel", "centos", "amzn"}:
        return f"sudo dnf install {rpm}"
    return f"install {deb} (Debian's name) or {rpm} (Fedora's name)"


def confinement_remedy() -> str:
    """What to do if a child process could not be confined completely (binary/confinement.py)."""
    library = install_command("libseccomp2", "libseccomp")
    return f"{library}; a kernel with seccomp filters, and landlock in its option lsm="
