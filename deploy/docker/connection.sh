# Sourced by whoever calls the SuperLink's control port, which only its own network namespace can reach.
# Writes Flower's connection `sites` and waits until the SuperLink answers.

FLWR_HOME=/tmp/flwr
export FLWR_HOME
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<'END'
[superlink.sites]
address = "127.0.0.1:8000"
root-certificates = "/keys/ca.crt"
END

tries=0
until /opt/protosphere/deploy/docker/healthy.sh superlink 2>/tmp/unhealthy; do
    tries=$((tries + 1))
    if [ "$tries" -ge 60 ]; then
        echo "the SuperLink does not answer: $(tail -n 1 /tmp/unhealthy); look at its log (docker compose logs superlink)" >&2
        exit 1
    fi
    sleep 1
done
