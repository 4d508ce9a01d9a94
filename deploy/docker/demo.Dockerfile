# The training job of the demo, with CPU torch and megatron-core. Build it from the repository root:
#   docker build -f deploy/docker/demo.Dockerfile -t relibra/demo .
FROM python:3.11.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/relibra \
    && /opt/relibra/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
# The packages come first, so that an edit of the sources does not install them again.
COPY pyproject.toml constraints.txt deploy/docker/requirements.py ./
RUN python requirements.py all > requirements.txt \
    && /opt/relibra/bin/pip install --no-cache-dir -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY docs/runbook.md docs/
COPY proto proto
COPY services services
COPY trainer_agent trainer_agent
COPY kernels kernels
RUN /opt/relibra/bin/pip install --no-cache-dir -c constraints.txt --no-deps '.[all]'

FROM python:3.11.11-slim-bookworm
RUN groupadd --system --gid 10001 relibra && useradd --system --uid 10001 --gid relibra relibra
COPY --from=build /opt/relibra /opt/relibra
ENV PATH=/opt/relibra/bin:$PATH NUMBA_CACHE_DIR=/tmp/numba HOME=/tmp
# By number, so that Kubernetes can check that it is not root.
USER 10001:10001
ENTRYPOINT ["relibra", "demo"]
