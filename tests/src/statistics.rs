//! Statistics of a server, read through the independent client.

use crate::raw::Raw;

/// Number of requests to run `command` (in lower case) since the server's statistics were reset,
/// executed or not. Redirected and denied commands count, except with Redis 6.2, which does not
/// report rejections.
///
/// # Panics
///
/// When the server is gone or its statistics are not what they used to be.
pub async fn calls(raw: &mut Raw, command: &str) -> u64 {
    let statistics = raw.cmd(&["INFO", "commandstats"]).await;
    let prefix = format!("cmdstat_{command}:");
    let Some(line) = statistics
        .str()
        .lines()
        .find_map(|line| line.strip_prefix(&prefix))
    else {
        return 0;
    };
    let field = |name: &str| -> u64 {
        line.split(',')
            .find_map(|field| field.strip_prefix(name))
            .map_or(0, |number| number.trim().parse().expect("a count"))
    };
    field("calls=") + field("rejected_calls=")
}

/// How many commands the server has executed, those within scripts too; not what begins a connection or asks for statistics.
///
/// # Panics
///
/// When the server is gone or its statistics are not what they used to be.
pub async fn commands(raw: &mut Raw) -> u64 {
    let statistics = raw.cmd(&["INFO", "commandstats"]).await;
    let calls = statistics.str().lines().filter_map(|line| {
        let (command, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_counted = !matches!(command, "info" | "flushall" | "ping" | "hello");
        let (calls, _) = fields.split_once(',')?;
        is_counted.then(|| calls.parse::<u64>().expect("a count"))
    });
    calls.sum()
}

/// Number of connections that are subscribed to `channel`.
///
/// # Panics
///
/// When the server is gone.
pub async fn subscribers(raw: &mut Raw, channel: &str) -> i64 {
    raw.cmd(&["PUBSUB", "NUMSUB", channel])
        .await
        .get(channel)
        .expect("the channel is named")
        .int()
}
