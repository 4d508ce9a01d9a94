"""verl's `external_lib`: inside verl, the import of this module turns on the plug-in `relibra.plugins.verl`.

Raises:
    Unsupported: `VERL_USE_EXTERNAL_MODULES` names this module: verl imports it before what the plug-in changes.
"""

import os
import sys

from relibra.errors import Unsupported
from relibra.plugins.verl import install

if __name__ in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    raise Unsupported(
        f"verl imports the modules of VERL_USE_EXTERNAL_MODULES before its trainers, too early for {__name__}; name it "
        f"on the command line instead: actor_rollout_ref.model.external_lib={__name__}"
    )
if "verl.workers" in sys.modules:
    install()
