FROM localhost/debian:bookworm
RUN ln -s /usr/bin/python3 /usr/local/bin/python && ln -s /usr/bin/python3 /usr/local/bin/python3
COPY machine.crt /etc/ssl/certs/machine.crt
COPY pip.conf /etc/pip.conf
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
