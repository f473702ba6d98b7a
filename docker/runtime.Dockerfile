# The runtime: MCP and status on 7000, gRPC on 7001. The folder that is built from is the checkout's root.
FROM python:3.11-slim-bookworm
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_ROOT_USER_ACTION=ignore
# The whole lock, so that the images share this layer.
COPY requirements.lock /tmp/
RUN pip install --quiet --no-cache-dir --no-deps --require-hashes -r /tmp/requirements.lock \
    && useradd --system --uid 10001 --create-home luftpause \
    && install -d -o luftpause /var/lib/luftpause
WORKDIR /app
COPY protos/ protos/
COPY common/ common/
COPY runtime/ runtime/
USER luftpause
# A container's network is its own; compose.yaml publishes on loopback alone.
ENV LUFTPAUSE_RUNTIME_HOST=0.0.0.0 LUFTPAUSE_STATE=/var/lib/luftpause
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7000/health', timeout=2)"]
CMD ["python", "-m", "runtime"]
