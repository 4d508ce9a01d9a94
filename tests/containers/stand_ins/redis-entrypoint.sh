#!/bin/sh
# What the entry point of the official image does.
set -e
if [ "${1#-}" != "$1" ] || [ "${1%.conf}" != "$1" ]; then set -- redis-server "$@"; fi
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
  find . ! -user redis -exec chown redis {} +
  exec setpriv --reuid=redis --regid=redis --init-groups "$0" "$@"
fi
if [ "$(umask)" = 0022 ]; then umask 0077; fi
exec "$@"
