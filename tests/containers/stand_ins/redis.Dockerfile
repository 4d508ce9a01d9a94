FROM localhost/debian:bookworm
# The numbers of the official image; Debian's package gives others.
RUN groupmod --non-unique --gid 1000 redis && usermod --non-unique --uid 999 --gid 1000 --home /data redis \
 && rm -rf /etc/redis && mkdir /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
COPY redis-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
# The official image is compiled with protected mode off.
RUN printf '#!/bin/sh\nexec /usr/bin/redis-server "$@" --protected-mode no\n' > /usr/local/bin/redis-server \
 && chmod 755 /usr/local/bin/*
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["redis-server"]
