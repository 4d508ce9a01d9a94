"""`python -m relibra.integrations.ms_swift` prints the file that turns on `relibra.plugins.ms_swift`.

ms-swift imports the file if it is given to `--external_plugins`.
"""

from pathlib import Path

from relibra.plugins.ms_swift import external

if __name__ == "__main__":
    print(Path(*external.__path__) / "relibra_for_ms_swift.py")
