"""The file that ms-swift imports. ms-swift puts its folder at the front of `sys.path`, so nothing else stands here."""
