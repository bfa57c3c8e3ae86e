"""`python -m dovetail` is the command `dovetail`."""

import sys

from dovetail.cli import main

sys.exit(main())
