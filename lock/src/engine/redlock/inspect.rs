//! Asking all nodes who holds a lock.

use std::time::Instant;

use super::super::together::together;
use super::core::Core;
use super::node::Node;
use crate::error::Error;
use crate::protocol::mutex::{inspect_all, read_inspect_all};
use crate::state::inspection::Inspection;
use crate::state::names::Name;

/// The answers of the nodes, in their order.
pub(crate) async fn inspect(core: &Core, name: &Name) -> Vec<Result<Inspection, Error>> {
    let mut questions = Vec::new();
    for node in &core.nodes {
        questions.push(ask(core, node, name));
    }
    together(questions, usize::MAX).await
}

async fn ask(core: &Core, node: &Node, name: &Name) -> Result<Inspection, Error> {
    core.check_name(name)?;
    let about = |error: Error| error.about(name.key(), node.name());
    #[cfg(feature = "testing")]
    crate::testing::hooks::fail_at(&core.clock, node.index).map_err(about)?;
    let deadline = Instant::now() + core.config.command_timeout;
    let client = node.connected(deadline).await.map_err(about)?;
    let call = inspect_all(name, core.config.interop);
    let asked = client.eval(&call.slices().call(), deadline).await;
    let reply = asked.map_err(|error| about(Error::from_read(error)))?.value;
    read_inspect_all(&reply).ok_or_else(|| about(Error::unexpected(&reply)))
}
