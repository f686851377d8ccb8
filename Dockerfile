# stforecast with the versions of constraints.txt, for a processor.
#
#   docker build -t stforecast .
#   docker run --rm -v "$PWD:/work" stforecast simulate --cells 4 --days 9 --out raw/
#
# EXTRAS adds optional parts: --build-arg EXTRAS=vision,flower
FROM python:3.11-slim

# The kernels are compiled at the first run.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

ARG EXTRAS=holidays
COPY . /src
# PyPI's torch carries CUDA, which a processor does not need; this index has it without.
RUN pip install --no-cache-dir -c /src/constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu "/src[$EXTRAS]" \
    && rm -rf /src

# Files in /work belong to this user; give another one with docker run --user.
RUN useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["stforecast"]
CMD ["--help"]
