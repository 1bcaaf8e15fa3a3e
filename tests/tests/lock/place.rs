//! Where models run their operations: at a server, or at the fake of `leasehold::testing`.

use leasehold_testkit::{Raw, Server};

pub(crate) enum Place {
    Server(Server),
    #[cfg(feature = "testing")]
    Fake(std::net::SocketAddr),
}

impl Place {
    pub(crate) async fn server() -> Self {
        Self::Server(Server::start().await)
    }

    #[cfg(feature = "testing")]
    pub(crate) async fn fake() -> Self {
        let fake = leasehold::testing::Fake::new();
        Self::Fake(crate::fake_same::listen(&fake).await)
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Server(server) => server.url(),
            #[cfg(feature = "testing")]
            Self::Fake(address) => format!("redis://{address}"),
        }
    }

    pub(crate) async fn raw(&self) -> Raw {
        match self {
            Self::Server(server) => server.raw().await,
            #[cfg(feature = "testing")]
            Self::Fake(address) => Raw::connect(address).await.expect("it listens"),
        }
    }

    /// How many sequences of operations there are. The locks were tried at a server: at the fake, only its commands are.
    pub(crate) const fn sequences(&self, at_a_server: u32) -> u32 {
        match self {
            Self::Server(_) => at_a_server,
            #[cfg(feature = "testing")]
            Self::Fake(_) => at_a_server / 8,
        }
    }
}
