"""Log configuration of a TorchServe that writes no line for a request that succeeds: log4j2.xml."""

from __future__ import annotations

_LINES_OF_A_BATCH = "Backend received inference at: .*|neuron_lstm lengths .*"
"""Lines that a worker writes for each batch: TorchServe's, and ours."""
_REFUSED = ".* [45][0-9][0-9] [0-9]+"
"""A line of the access log with a status of 400 or more, and the milliseconds."""
_WORKER_RESTARTS = ".* Worker disconnected.*|Retry worker: .*"
"""Lines of information at which an operator should look; the others of this logger come with each batch."""

_TEXT = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- Warnings, errors, refused requests, and lines of workers. A request that succeeds adds no line to the console. -->
<Configuration>
  <Appenders>
    <Console name="console" target="SYSTEM_OUT"><PatternLayout pattern="%d{{ISO8601}} [%-5p] %t %c - %m%n"/></Console>
{appender}  </Appenders>
  <Loggers>
    <Root level="warn"><AppenderRef ref="console"/></Root>
    <Logger name="ACCESS_LOG" level="info">
      <RegexFilter regex="{refused}" onMatch="NEUTRAL" onMismatch="DENY"/>
    </Logger>
    <Logger name="org.pytorch.serve.wlm.WorkerThread" level="info">
      <Filters>
        <ThresholdFilter level="warn" onMatch="ACCEPT" onMismatch="NEUTRAL"/>
        <RegexFilter regex="{restarts}" onMatch="NEUTRAL" onMismatch="DENY"/>
      </Filters>
    </Logger>
    <Logger name="MODEL_LOG" level="info" additivity="false">
      <AppenderRef ref="console">
        <RegexFilter regex="{batch}" onMatch="DENY" onMismatch="NEUTRAL"/>
      </AppenderRef>
{reference}    </Logger>
  </Loggers>
</Configuration>
"""
_FILE = """\
    <RollingFile name="file" fileName="${env:LOG_LOCATION:-logs}/model_log.log"
                 filePattern="${env:LOG_LOCATION:-logs}/model_log.%i.log">
      <PatternLayout pattern="%d{ISO8601} [%-5p] %t %c - %m%n"/>
      <SizeBasedTriggeringPolicy size="50 MB"/>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>
"""


def log_configuration(*, with_file: bool) -> str:
    """Return the text of log4j2.xml.

    `with_file`: all lines of workers go to `model_log.log` in the folder LOG_LOCATION (or `logs`) too, those of each
    batch among them, which `neuron-lstm tune` reads. At most 100 MB are kept.
    """
    return _TEXT.format(
        appender=_FILE if with_file else "",
        reference='      <AppenderRef ref="file"/>\n' if with_file else "",
        refused=_REFUSED,
        restarts=_WORKER_RESTARTS,
        batch=_LINES_OF_A_BATCH,
    )
