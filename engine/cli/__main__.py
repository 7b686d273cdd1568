"""``python -m engine.cli`` is ``espalier``."""

import sys

from engine.cli.main import main

sys.exit(main())
