"""The commands by which this machine's distribution installs a package."""

import platform


def install(deb: str, rpm: str) -> str:
    """The command that installs a package, named as Debian and as Fedora name it.

    /etc/os-release says which of the two this machine is like (os-release(5)); if neither, both names are given.
    """
    try:
        release = platform.freedesktop_os_release()
    except OSError:  # there is no such file
        release = {}
    families = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if families & {"debian", "ubuntu"}:
        return f"sudo apt install {deb}"
    if families & {"fedora", "rhel", "centos", "amzn"}:
        return f"sudo dnf install {rpm}"
    return f"install what Debian calls {deb} and Fedora {rpm}"
