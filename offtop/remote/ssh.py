"""The ssh command that starts offtop on another machine, and what its errors mean.

The first connection may ask for a password or a host key: it is made before there is a screen. Later ones may not.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offtop import __version__
from offtop.errors import KernelError, OfftopError, PrivilegeError, UsageError
from offtop.printable import printable

_OPTIONS = (
    *("-T", "-a", "-x"),  # no terminal there, no agent, no X
    *("-o", "ClearAllForwardings=yes"),  # those of ssh_config may be in use by another ssh
    *("-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no"),
    *("-o", "UpdateHostKeys=no"),  # it may ask about them when there is a screen
)
_UNATTENDED = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
UNATTENDED_ENVIRONMENT = {"SSH_ASKPASS_REQUIRE": "never"}
_LONGEST_TEXT = 300
_STATUSES: Mapping[int, type[OfftopError]] = {one.status: one for one in (UsageError, PrivilegeError, KernelError)}
_OWN = "offtop: "


@dataclass(frozen=True, slots=True)
class Target:
    """How to start offtop on another machine."""

    host: str
    """As ssh takes it. It begins with no `-`, and holds nothing that a shell interprets."""
    arguments: Sequence[str]
    """For `offtop record`."""
    ssh: Sequence[str] = ("ssh",)
    sudo: str | None = None
    """What makes offtop root there, for a shell; None: `sudo -n`, unless the login is root's."""
    offtop: str = "offtop"

    @property
    def name(self) -> str:
        """The host, for people."""
        return printable(self.host)

    @property
    def remote_command(self) -> str:
        """The command for the login shell there."""
        return as_root([self.offtop, "record", *self.arguments], self.sudo, "sudo -n")

    def command(self, may_ask: bool) -> list[str]:
        """Return the command to run here; `may_ask`: a person is there who can answer questions of ssh."""
        unattended = () if may_ask else _UNATTENDED
        return [*self.ssh, *_OPTIONS, *unattended, "--", self.host, self.remote_command]


def as_root(command: Sequence[str], become: str | None, usual: str) -> str:
    """Return what a login shell there runs, so that root runs `command`.

    `become`: what is written before the command; None: `usual`, unless the login is root's.
    """
    if become is not None:
        return f"{become} {shlex.join(command)}".lstrip()
    return shlex.join(["sh", "-c", f'if [ "$(id -u)" = 0 ]; then exec "$0" "$@"; fi; exec {usual} "$0" "$@"', *command])


def ssh_words(text: str | None) -> Sequence[str]:
    """Split the --ssh-command; None: it is not given. Raises UsageError."""
    if text is None:
        return ("ssh",)
    try:
        words = shlex.split(text)
    except ValueError as wrong:
        raise UsageError(f"--ssh-command: '{printable(text)}' cannot be split into words ({wrong})") from None
    if not words:
        raise UsageError("--ssh-command is empty. Name a command, such as 'ssh -p 2222', or omit it")
    return words


def explained(target: Target, status: int, errors: str) -> OfftopError:
    """Return what the end of ssh means. `errors`: what it and the command there wrote to stderr."""
    host = target.name
    by_hand, there = (shlex.join(["ssh", *words, *target.ssh[1:], target.host]) for words in ((), ("-t",)))
    texts = {
        "host": host,
        "by_hand": printable(by_hand),
        "there": printable(there),
        "offtop": printable(target.offtop),
        "version": __version__,
    }
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = printable(lines[-1])[:_LONGEST_TEXT] if lines else ""
    for pattern, text in _MEANINGS:
        if re.search(pattern, errors):
            return OfftopError(text.format(**texts))
    if last.startswith(_OWN) and 0 < status < 128:
        return _STATUSES.get(status, OfftopError)(f"{host}: {last.removeprefix(_OWN)}")
    become = [*(target.sudo or "").split(), "sudo"][0]
    named = re.escape(become)
    if re.search(rf"(?<!\S){named}: (command )?not found|(not found|Unknown command): {named}(?!\S)", errors):
        return OfftopError(f"There is no {printable(become)} on {host}. Name another --sudo-command, {_ROOT}")
    if status == 127:
        return OfftopError(_NO_OFFTOP.format(**texts))
    reason = f" ({last})" if last else ""
    if status == 255 or not status:
        return OfftopError(f"ssh to {host} ended{reason}. Try: {texts['by_hand']}")
    return OfftopError(f"offtop on {host} ended with status {status}{reason}. Try there: sudo offtop doctor")


_NO_OFFTOP = (
    "There is no {offtop} on {host}, or not in the PATH there. Install it, or say where it is: --remote-offtop PATH"
)
_OF_SSH = r"(?im)^(ssh: |channel [0-9]+: |connection |kex_|banner exchange: |timeout, ).*"
"""The beginning of an error of ssh itself: what a host prints before the login may hold any words."""
_ROOT = "or log in as root"
_MEANINGS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        (
            "The host key of {host} has changed: it was reinstalled, or another machine answers in its place. If "
            "you know which, remove the old key as ssh says: {by_hand}"
        ),
    ),
    (
        r"Host key verification failed|host key is known for",
        "ssh does not know the host key of {host}. Check and accept it once: {by_hand}",
    ),
    (_OF_SSH + "Could not resolve hostname", "ssh cannot find {host}. Check the name, or add it to ~/.ssh/config"),
    (
        _OF_SSH + "Connection refused",
        "{host} refuses connections by ssh. Start sshd there, or name its port: ssh://{host}:PORT",
    ),
    (
        _OF_SSH + "(timed out|not responding|No route to host|Network is unreachable|Host is down)",
        "{host} does not answer. Check that it is up, and that ssh gets there: {by_hand}",
    ),
    (r"Permission denied \(", "{host} does not let you in. Check your key or password: {by_hand}"),
    (
        r"Bad configuration option|unknown option --",
        "This ssh lacks an option. Use OpenSSH 7.6 or later: --ssh-command",
    ),
    (
        r"(?m)^sudo: .*(password is required|terminal is required|authentication is required)",
        (
            "sudo on {host} asks for a password, which cannot be typed here. Permit {offtop} in sudoers there without "
            "one (NOPASSWD), log in as root, or draw the screen there: {there} sudo {offtop}"
        ),
    ),
    (
        r"not in the sudoers file|is not allowed to (run|execute)|may not run sudo",
        f"sudo on {{host}} does not permit {{offtop}} to you. Permit it in sudoers there, {_ROOT}",
    ),
    (r"sudo: .*: command not found", _NO_OFFTOP),
    (
        r"does not take '--stream-version'|writes version [0-9]+ of the stream",
        "offtop on {host} has another version, which does not go with this one. Install {version} there",
    ),
)
"""What to look for in the errors of ssh, sudo, a shell or offtop, and what to say."""
