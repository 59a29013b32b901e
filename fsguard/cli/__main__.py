"""`python -m fsguard.cli`: the same as the installed command."""

from __future__ import annotations

import sys

from fsguard.cli import main

sys.exit(main())
