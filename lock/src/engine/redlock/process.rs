//! Asking all nodes which process a client is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::core::Core;
use super::node::Node;
use crate::error::{Error, ErrorKind};
use crate::process::Process;
use crate::protocol::process::{ask, read};

/// How long the other nodes have for their answers once a majority knows nothing: a minority may.
const OTHERS: Duration = Duration::from_millis(250);

/// The process that the client with this id belongs to, as the first node tells that knows it.
pub(crate) async fn process_of(core: &Arc<Core>, client: &str) -> Result<Option<Process>, Error> {
    core.check()?;
    if ask(client).is_none() {
        return Ok(None);
    }
    let (tell, mut answers) = mpsc::channel(core.nodes.len());
    for node in &core.nodes {
        let (core, node, tell) = (Arc::clone(core), Arc::clone(node), tell.clone());
        let client = client.to_owned();
        let asking = Arc::clone(&core);
        asking.spawn(async move {
            let _ = tell.send(ask_node(&core, &node, &client).await).await;
        });
    }
    drop(tell);
    let (mut ignorant, mut failure) = (0, None);
    let mut until = core.clock.now() + core.config.command_timeout * 2;
    while let Ok(Some(answer)) = core.clock.timeout_at(until, answers.recv()).await {
        match answer {
            Ok(None) => ignorant += 1,
            Err(error) => failure = failure.or(Some(error)),
            found => return found,
        }
        if ignorant == core.needed() {
            until = until.min(core.clock.now() + OTHERS);
        }
    }
    match failure {
        Some(error) if ignorant < core.needed() => Err(error),
        None if ignorant < core.needed() => Err(Error::new(
            ErrorKind::Unavailable,
            "no majority of the nodes answered in time",
        )),
        _ => Ok(None),
    }
}

async fn ask_node(core: &Core, node: &Node, client: &str) -> Result<Option<Process>, Error> {
    let Some((key, command)) = ask(client) else {
        return Ok(None);
    };
    let about = |error: Error| error.about(&key, node.name());
    let deadline = Instant::now() + core.config.command_timeout;
    let connected = node.connected(deadline).await.map_err(about)?;
    let reply = connected.call(key.as_bytes(), &command).await;
    Ok(read(
        &reply.map_err(|error| about(Error::from_read(error)))?,
    ))
}
