"""systemd-logind, which announces the shutdown of a machine to its kubelet, on a system bus of its own.

The kubelet asks logind to delay a shutdown, and waits for the signal PrepareForShutdown. The service is Debian's
systemd-logind. It runs without systemd, which alone could shut the machine down: the bus has no other service. The test
itself sends the signal on this bus, so that no program is asked for a shutdown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.kubelet.build import LOGIND

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kubelet.container_host import ContainerHost

DELAY_MAX_S: Final = 120
"""How long the kubelet may delay a shutdown. The kubelet cannot raise the limit itself, because it asks systemd."""
BUS: Final = """
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="root"/><allow own="*"/>
    <allow send_type="*"/><allow receive_type="*"/><allow send_destination="*"/>
  </policy>
</busconfig>
"""
SETTINGS: Final = """
[Login]
InhibitDelayMaxSec={delay}
NAutoVTs=0
ReserveVT=0
HandlePowerKey=ignore
HandleLidSwitch=ignore
"""
PRIVATE_FOLDERS: Final = """
for folder in /run/dbus /run/systemd; do
  mkdir -p $folder && mount -t tmpfs tmpfs $folder || exit
done
mkdir -p /run/systemd/logind.conf.d && cp "$1" /run/systemd/logind.conf.d/ && exec "$2"
"""
"""Runs logind in a mount namespace without the sockets of the machine's own D-Bus and systemd."""
NAME: Final = "org.freedesktop.login1"
OBJECT: Final = "/org/freedesktop/login1"
INTERFACE: Final = f"{NAME}.Manager"
DELAY: Final = (f"string:{INTERFACE}", "string:InhibitDelayMaxUSec")
"""The property that the kubelet reads first."""


@dataclass(frozen=True)
class LoginManager:
    """The bus and the service of one container host."""

    host: ContainerHost

    @property
    def bus_setting(self) -> str:
        """The environment variable that makes a program use the bus."""
        return f"DBUS_SYSTEM_BUS_ADDRESS=unix:path={self._socket}"

    def start(self) -> None:
        """Start the bus and the service, if they do not run yet."""
        if self._socket.exists():
            return
        folder = self.host.folder
        (folder / "bus.conf").write_text(BUS.format(socket=self._socket))
        (folder / "logind.conf").write_text(SETTINGS.format(delay=DELAY_MAX_S))
        self.host.start("dbus", "dbus-daemon", f"--config-file={folder / 'bus.conf'}", "--nofork", "--nopidfile")
        self.host.wait("dbus", self._socket.exists)
        private = ("unshare", "--mount", "sh", "-c", PRIVATE_FOLDERS, "logind")
        self.host.start("logind", "env", self.bus_setting, *private, str(folder / "logind.conf"), str(LOGIND))
        self.host.wait("logind", lambda: "uint64" in self._call("org.freedesktop.DBus.Properties.Get", *DELAY))

    def wait_inhibitor(self, who: str) -> None:
        """Wait until a program has asked logind to delay a shutdown."""
        self.host.wait("logind", lambda: f'"{who}"' in self._call(f"{INTERFACE}.ListInhibitors"))

    def announce_shutdown(self, *, is_cancelled: bool = False) -> None:
        """Announce that the machine shuts down, or that it does not after all. The machine never does."""
        value = f"boolean:{str(not is_cancelled).lower()}"
        self.host.run(*self._send, "--type=signal", OBJECT, f"{INTERFACE}.PrepareForShutdown", value)

    def _call(self, method: str, *arguments: str) -> str:
        return self.host.run(*self._send, "--print-reply", f"--dest={NAME}", OBJECT, method, *arguments)

    @property
    def _send(self) -> tuple[str, ...]:
        return ("env", self.bus_setting, "dbus-send", "--system")

    @property
    def _socket(self) -> Path:
        return self.host.folder / "bus"
