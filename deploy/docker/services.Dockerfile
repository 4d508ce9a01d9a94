# Two images without torch, built from the repository root:
#   docker build -f deploy/docker/services.Dockerfile -t relibra/services .                  planner, status service, command line
#   docker build -f deploy/docker/services.Dockerfile --target status -t relibra/status .    the same without planner and solver
#
# The base image, by its digest. A mirror of your own: --build-arg PYTHON_IMAGE=registry.example/python@sha256:...
ARG PYTHON_IMAGE=python:3.11.11-slim-bookworm@sha256:081075da77b2b55c23c088251026fb69a7b2bf92471e491ff5fd75c192fd38e5
# The CPU that the solver is compiled for. `generic` runs on every CPU of the architecture; docs/service.md has others.
ARG CPU=generic

FROM ${PYTHON_IMAGE} AS tools
WORKDIR /src
# Images need no pip, so that of another environment installs into theirs. They need no tests of packages either.
RUN python -m venv /opt/build && python -m venv --without-pip /opt/relibra

# The packages come first, so that an edit of the sources does not install them again. pip compares each file with its lock.
FROM tools AS status-packages
COPY deploy/locks/status.txt deploy/locks/
RUN /opt/build/bin/pip --python /opt/relibra/bin/python install --no-cache-dir --require-hashes --no-deps -r deploy/locks/status.txt \
    && find /opt/relibra/lib -type d -name tests -prune -exec rm -r {} +

# The lock of services has all of the other one.
FROM status-packages AS services-packages
COPY deploy/locks/services.txt deploy/locks/
RUN /opt/build/bin/pip --python /opt/relibra/bin/python install --no-cache-dir --require-hashes --no-deps -r deploy/locks/services.txt \
    && find /opt/relibra/lib -type d -name tests -prune -exec rm -r {} +

FROM tools AS wheel
COPY deploy/locks deploy/locks
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes --no-deps -r deploy/locks/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY docs/runbook docs/runbook
COPY proto proto
COPY services services
COPY trainer_agent trainer_agent
COPY kernels kernels
COPY deploy/sbom.py deploy/
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir dist . \
    && for each in status services; do python deploy/sbom.py $each > dist/$each.cdx.json; done

FROM status-packages AS status-build
COPY --from=wheel /src/dist dist
RUN /opt/build/bin/pip --python /opt/relibra/bin/python install --no-cache-dir --no-index --no-deps dist/*.whl \
    && /opt/build/bin/pip --python /opt/relibra/bin/python check \
    && mkdir -p /opt/relibra/share/relibra \
    && cp dist/status.cdx.json /opt/relibra/share/relibra/

FROM services-packages AS services-build
ARG CPU
COPY --from=wheel /src/dist dist
RUN /opt/build/bin/pip --python /opt/relibra/bin/python install --no-cache-dir --no-index --no-deps dist/*.whl \
    && /opt/build/bin/pip --python /opt/relibra/bin/python check \
    && mkdir -p /opt/relibra/share/relibra \
    && cp dist/services.cdx.json /opt/relibra/share/relibra/
ENV NUMBA_CPU_NAME=$CPU NUMBA_CPU_FEATURES=
RUN /opt/relibra/bin/python -m relibra.planner.solve.machine_code /opt/relibra/share/relibra/machine-code

FROM ${PYTHON_IMAGE} AS base
ARG PYTHON_IMAGE
RUN groupadd --system --gid 10001 relibra && useradd --system --uid 10001 --gid relibra relibra
ENV PATH=/opt/relibra/bin:$PATH
# By number, so that Kubernetes can check that it is not root.
USER 10001:10001
# The commit of the sources: --build-arg REVISION=$(git rev-parse HEAD)
ARG REVISION=unknown
LABEL org.opencontainers.image.version=0.1.0 \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.base.name=${PYTHON_IMAGE}
ENTRYPOINT ["relibra"]

FROM base AS status
COPY --from=status-build /opt/relibra /opt/relibra
LABEL org.opencontainers.image.title="relibra status" \
      org.opencontainers.image.description="Status service and command line of relibra"

FROM base AS services
ARG CPU
COPY --from=services-build /opt/relibra /opt/relibra
# In a read-only container numba can add machine code here; a planner copies that of the image to it.
ENV NUMBA_CACHE_DIR=/tmp/numba NUMBA_CPU_NAME=$CPU NUMBA_CPU_FEATURES=
LABEL org.opencontainers.image.title="relibra services" \
      org.opencontainers.image.description="Planner, status service and command line of relibra"
