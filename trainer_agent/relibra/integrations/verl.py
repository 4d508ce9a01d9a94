"""verl's `external_lib`: inside verl, the import of this module turns on the plug-in `relibra.plugins.verl`."""

import sys

from relibra.plugins.verl import install

if "verl.workers" in sys.modules:
    install()
