# The first stage builds the wheel and installs everything; the second keeps only what runs.
FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements.txt requirements-build.txt ./
RUN python -m venv --without-pip /opt/runner \
    && pip install --no-cache-dir --require-hashes -r requirements-build.txt \
    && pip --python /opt/runner/bin/python install \
        --no-cache-dir --no-compile --require-hashes -r requirements.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY runner ./runner
COPY migrations ./migrations
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/runner/bin/python install --no-deps /wheels/*.whl
# Bytecode only of Runner and of what a worker imports: that of everything would make the image a tenth
# larger.
ENV PATH=/opt/runner/bin:$PATH RUNNER_HOME=/tmp/home
RUN runner db upgrade && runner worker --burst && /opt/runner/bin/python -c \
    "import runner.llm.anthropic, runner.telemetry.exporting, anthropic.resources.beta.messages"

FROM python:3.13-slim
# Containers run as any user (see docker-compose.yml). ssh wants a name for each, and a folder that is
# mounted may belong to another user: without the setting, git would refuse to work in it.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bash git less libnss-extrausers openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home runner \
    && seq 1001 60000 | sed 's|.*|uid&:x:&:&::/home/runner:/bin/bash|' > /var/lib/extrausers/passwd \
    && sed -i 's/^passwd:.*/& extrausers/' /etc/nsswitch.conf \
    && git config --system --add safe.directory '*' \
    && mkdir --parents /var/lib/runner /workspace \
    && chmod 1777 /home/runner /var/lib/runner /workspace
COPY --from=build /opt/runner /opt/runner
USER runner
ENV HOME=/home/runner PATH=/opt/runner/bin:$PATH RUNNER_HOME=/var/lib/runner
WORKDIR /workspace
ENTRYPOINT ["runner"]
CMD ["worker"]
