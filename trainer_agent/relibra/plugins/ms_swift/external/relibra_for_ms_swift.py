"""Turn on the plug-in for ms-swift. ms-swift imports this file by its path, from `--external_plugins`."""

from relibra.plugins.ms_swift import install

install()
