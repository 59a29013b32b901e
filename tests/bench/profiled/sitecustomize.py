"""Found (PYTHONPATH) by the daemon that `tests.bench.profile` starts: profiles its Python."""

from __future__ import annotations

import atexit
import cProfile
import os
import sys

if "fsguard.daemon" in sys.orig_argv and "FSGUARD_BENCH_PROFILE" in os.environ:
    _profile = cProfile.Profile()
    atexit.register(lambda: _profile.dump_stats(os.environ["FSGUARD_BENCH_PROFILE"]))
    _profile.enable()
