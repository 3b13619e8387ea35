"""Agents of many simulated hosts in one process, at /NUMBER/metrics: `python simulated_hosts.py PORT HOSTS PROGRAMS`.

Each has PROGRAMS programs in five categories. What a host waits grows with its clock, like that of a real agent. After
a GET of /incident/NUMBER, 40 more threads of that host wait for a lock, and on 12 hosts from it some for a WAL flush.
/scrapes is how often that host has been read since.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence

CATEGORIES = ("lock", "disk-read", "fsync", "net-recv", "run-queue")
INCIDENT_THREADS = 40.0
FLUSHING_HOSTS = 12


class Machines:
    def __init__(self, hosts: int, programs: int) -> None:
        self._began_s = time.time() - 3600
        draw = random.Random(7)
        self._rates: Sequence[Sequence[float]] = [
            [draw.uniform(0.05, 0.15) for _ in range(programs * len(CATEGORIES))] for _ in range(hosts)
        ]
        self._labels = [
            f'offtop_wait_seconds_total{{category="{category}",program="program{program}",unit=""}}'
            for program in range(programs)
            for category in CATEGORIES
        ]
        self._incident: tuple[int, float] | None = None
        self.scrapes = 0
        """How often the host with the incident was read since."""

    def strike(self, number: int) -> None:
        self._incident, self.scrapes = (number, time.time()), 0

    def metrics(self, number: int) -> str:
        now_s = time.time()
        passed_s = now_s - self._began_s
        lines = [
            f"{labels} {rate * passed_s:.6f}" for labels, rate in zip(self._labels, self._rates[number], strict=True)
        ]
        if self._incident:
            struck, since_s = self._incident
            if number == struck:
                self.scrapes += 1
                waited = INCIDENT_THREADS * (now_s - since_s)
                lines.append(f'offtop_wait_seconds_total{{category="lock",program="postgres",unit="db"}} {waited:.6f}')
                lines.append(
                    'offtop_cause_wait_seconds_total{program="postgres",unit="db",why="postgres-row-lock"} '
                    f"{waited:.6f}"
                )
            if struck <= number < struck + FLUSHING_HOSTS:
                lines.append('offtop_suspect_threads{what="the WAL flush",who="postgres",held_by="postgres"} 3.5')
        lines.append(f"offtop_agent_last_tick_timestamp_seconds {now_s:.3f}")
        return "\n".join([*lines, ""])


async def serve(port: int, machines: Machines) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                first, _, last = request.split(b" ", 2)[1].decode().strip("/").partition("/")
                if first == "incident":
                    machines.strike(int(last))
                    body = b"struck\n"
                elif first == "scrapes":
                    body = f"{machines.scrapes}\n".encode()
                else:
                    body = machines.metrics(int(first)).encode()
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Machines(int(sys.argv[2]), int(sys.argv[3]))))
