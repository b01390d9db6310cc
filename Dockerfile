# One image for the SuperLink, the sites and whoever starts runs. docs/deployment.md tells what a base image must have.
ARG BASE_IMAGE=python:3.11-slim-bookworm
# what pyproject.toml requires, alone: its other lines may change without PyTorch being installed again
FROM ${BASE_IMAGE} AS requirements
COPY pyproject.toml /
RUN python3 -c 'import tomllib; file = tomllib.load(open("/pyproject.toml", "rb")); print(*file["project"]["dependencies"], *file["build-system"]["requires"], "editables", sep="\n")' > /requirements.txt

FROM ${BASE_IMAGE}

# which Flower: 1.42, over HTTPS, or 1.39, over gRPC; the same at all sites and at the SuperLink
ARG FLOWER=1.42
# where else PyTorch may come from, such as https://download.pytorch.org/whl/cpu: its builds without CUDA save 5 GB
ARG TORCH_INDEX=

LABEL org.opencontainers.image.title="Protosphere" \
      org.opencontainers.image.licenses="Apache-2.0"

ENV PATH=/opt/venv/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    MPLCONFIGDIR=/tmp/matplotlib

WORKDIR /opt/protosphere

COPY --from=requirements /requirements.txt /tmp/
COPY deploy/docker/constraints.txt deploy/docker/constraints-flower-${FLOWER}.txt /tmp/
RUN python3 -m venv /opt/venv \
    && pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        --constraint /tmp/constraints.txt --constraint "/tmp/constraints-flower-$FLOWER.txt" \
        --requirement /tmp/requirements.txt

# editable: `protosphere run` sends the app's source folder to the sites
COPY . ./
RUN pip install --no-deps --no-build-isolation --no-index --editable . \
    && python -m compileall -q -x '/tests/' .

# A new named volume takes its owner from the folder of the image at which it is first mounted. In /volumes are those
# of the two services that fill other services' volumes; the rest of the folders is what a service sees of its own.
RUN useradd --uid 10001 --user-group --home-dir /state --no-create-home protosphere \
    && mkdir -p /data /results /volumes \
    && mkdir -p -m 700 /state /keys /volumes/authority-keys /volumes/superlink-keys /volumes/operator-keys \
    && for site in $(seq 0 15); do mkdir -p -m 700 "/volumes/site-$site-keys" && mkdir -p "/volumes/site-$site-data"; done \
    && chown -R protosphere:protosphere /state /keys /data /results /volumes

USER 10001:10001
CMD ["protosphere", "--help"]
