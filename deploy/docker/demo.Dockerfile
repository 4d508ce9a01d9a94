# The training job of the demo, with CPU torch and megatron-core. Build it from the repository root:
#   docker build -f deploy/docker/demo.Dockerfile -t relibra/demo .
#
# The base image, by its digest. A mirror of your own: --build-arg PYTHON_IMAGE=registry.example/python@sha256:...
ARG PYTHON_IMAGE=python:3.11.11-slim-bookworm@sha256:081075da77b2b55c23c088251026fb69a7b2bf92471e491ff5fd75c192fd38e5

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# torch and what it needs come from its own index, whose CPU builds are not those of PyPI. They have no lock.
RUN python -m venv /opt/relibra && python -m venv /opt/build \
    && /opt/relibra/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
# The packages come first, so that an edit of the sources does not install them again. pip compares each file with its lock.
COPY deploy/locks deploy/locks
RUN /opt/relibra/bin/pip install --no-cache-dir --require-hashes --no-deps -r deploy/locks/demo.txt \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --no-deps -r deploy/locks/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY docs/runbook docs/runbook
COPY proto proto
COPY services services
COPY trainer_agent trainer_agent
COPY kernels kernels
COPY deploy/sbom.py deploy/
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir dist . \
    && /opt/relibra/bin/pip install --no-cache-dir --no-index --no-deps dist/*.whl \
    && /opt/relibra/bin/pip check \
    && mkdir -p /opt/relibra/share/relibra \
    && python deploy/sbom.py demo > /opt/relibra/share/relibra/demo.cdx.json

FROM ${PYTHON_IMAGE}
ARG PYTHON_IMAGE
RUN groupadd --system --gid 10001 relibra && useradd --system --uid 10001 --gid relibra relibra
COPY --from=build /opt/relibra /opt/relibra
ENV PATH=/opt/relibra/bin:$PATH NUMBA_CACHE_DIR=/tmp/numba HOME=/tmp
# By number, so that Kubernetes can check that it is not root.
USER 10001:10001
# The commit of the sources: --build-arg REVISION=$(git rev-parse HEAD)
ARG REVISION=unknown
LABEL org.opencontainers.image.title="relibra demo" \
      org.opencontainers.image.description="The training job of relibra's demo, with CPU torch and megatron-core" \
      org.opencontainers.image.version=0.1.0 \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.base.name=${PYTHON_IMAGE}
ENTRYPOINT ["relibra", "demo"]
