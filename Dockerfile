FROM python:3.13-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bash git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/runner
COPY requirements.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY runner ./runner
COPY migrations ./migrations
RUN pip install --no-cache-dir --no-deps . \
    && useradd --create-home runner \
    && mkdir --parents /var/lib/runner /workspace \
    && chown runner:runner /var/lib/runner /workspace
USER runner
ENV RUNNER_HOME=/var/lib/runner
WORKDIR /workspace
ENTRYPOINT ["runner"]
CMD ["worker"]
