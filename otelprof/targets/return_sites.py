"""Return sites of driver calls: where a wait ends, or a look-up has given its handle.

A return probe would make the target call a system call of its own and changes its stack. Instead the entry probe reads the
caller's return address, and an ordinary probe is set on the instruction there, which is an instruction's border by
definition. Only callers in files can be probed; machine code that was made at run time is left out and counted.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from otelprof.counters import CUDA_RETURN_SITES, Counters
from otelprof.errors import OtelprofError, TargetError
from otelprof.processes.maps import Maps, Region, open_region, read_maps
from otelprof.targets.cuda import Attachment, Prober
from otelprof.targets.descriptors import free_descriptors
from otelprof.targets.file_identity import Identity, identity

log = logging.getLogger(__name__)

SITES_LIMIT = 512
_CALLERS_LIMIT = 16_384
_TRIES_LIMIT = 64  # new callers of one process that are looked up at once


@dataclass(slots=True)
class _Site:
    """A probed instruction and the processes (incarnation numbers) that were seen to return there."""

    probe: Attachment
    users: set[int] = field(default_factory=set)


class ReturnSites:
    """The return sites of all processes; each is probed once in its file, `limit` of them at most."""

    def __init__(
        self,
        prober: Prober,
        counters: Counters,
        limit: int = SITES_LIMIT,
        maps_of: Callable[[int], Maps] = read_maps,
    ) -> None:
        self._prober, self._counters, self._limit, self._maps_of = prober, counters, limit, maps_of
        self._sites: dict[tuple[Identity, int], _Site] = {}
        self._callers: dict[tuple[int, int], str] = {}

    def learn(self, process: int, pid: int, callers: Iterable[int]) -> int:
        """Probe the return addresses that are new in a process; how many probes were set.

        `callers` are absolute addresses, of waits and look-ups. Known ones cost a look into a dict; a process that is gone
        costs nothing more.
        """
        new = {caller for caller in callers if (process, caller) not in self._callers}
        if not new or len(self._callers) + len(new) > _CALLERS_LIMIT:
            return 0
        before = len(self._sites)
        try:
            maps = self._maps_of(pid)
            for caller in sorted(new)[:_TRIES_LIMIT]:
                self._callers[process, caller] = self._probe(process, pid, caller, maps.find(caller))
        except TargetError as error:
            log.debug("%s", error)
        self._count()
        return len(self._sites) - before

    def is_probed(self, process: int, caller: int) -> bool:
        """True when the end of calls from this return address is seen."""
        return self._callers.get((process, caller)) == "probed"

    def leave(self, process: int) -> None:
        """A process has ended or changed its image; sites that nobody else uses are let go."""
        self._callers = {key: state for key, state in self._callers.items() if key[0] != process}
        for key, site in list(self._sites.items()):
            site.users.discard(process)
            if not site.users:
                self._sites.pop(key).probe.close()
        self._count()

    def close(self) -> None:
        """Take all probes away."""
        for site in self._sites.values():
            site.probe.close()
        self._sites.clear()
        self._callers.clear()
        self._count()

    def _probe(self, process: int, pid: int, caller: int, region: Region | None) -> str:
        """Probe one caller; the state that is counted for it."""
        if region is None or not region.is_file:
            return "no_file"
        file = open_region(pid, region)
        try:
            key = (identity(file), caller - region.start + region.offset)
            return self._use(file, key, process)
        finally:
            os.close(file)

    def _use(self, file: int, key: tuple[Identity, int], process: int) -> str:
        site = self._sites.get(key)
        if site is None and (len(self._sites) >= self._limit or free_descriptors() < 2):
            return "table_full"
        try:
            site = site or _Site(self._prober.attach_return(file, key[1]))
        except OtelprofError as error:
            log.debug("return site at %#x is not probed: %s", key[1], error)
            return "refused"
        site.users.add(process)
        self._sites[key] = site
        return "probed"

    def _count(self) -> None:
        states = Counter(self._callers.values())
        for state in ("no_file", "table_full", "refused"):
            self._counters.set(CUDA_RETURN_SITES, states[state], state)
        self._counters.set(CUDA_RETURN_SITES, len(self._sites), "probed")
