"""Between the filesystem and the guard: resolves who, asks the guard, carries out what it says.

The imperative shell around the pure core. It knows the clock, the waiting and
the errno of a refusal; it knows neither FUSE nor /proc (see `Processes`).
"""

from fsguard.dispatch.observer import DIGEST_LIMIT, Dispatch
from fsguard.dispatch.openfile import OpenFile
from fsguard.dispatch.ports import Processes
from fsguard.dispatch.shield import Shield

__all__ = ["DIGEST_LIMIT", "Dispatch", "OpenFile", "Processes", "Shield"]
