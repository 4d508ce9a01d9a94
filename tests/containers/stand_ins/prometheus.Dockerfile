FROM localhost/debian:bookworm
COPY prometheus busybox /bin/
RUN for each in sh sed wget; do ln -sf /bin/busybox /usr/local/bin/$each; done && mkdir /prometheus && chown nobody:nogroup /prometheus
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER nobody
VOLUME ["/prometheus"]
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
