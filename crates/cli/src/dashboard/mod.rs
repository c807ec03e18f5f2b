//! `thalweg dashboard`: runs, a cluster and the machine, live, on a local web page.

mod cluster;
mod state;
mod system;

use std::io::Cursor;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use tiny_http::{Header, Request, Response, Server};

use crate::launch;
use cluster::Cluster;
use state::Watched;
use system::System;

const PAGE: &str = include_str!("page.html");

#[derive(clap::Args)]
pub struct Args {
    /// The folder of the runs. It may be empty, or not there yet.
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// The port of 127.0.0.1 to listen at; 0 takes one that is free.
    #[arg(long, default_value_t = 6008)]
    port: u16,
    /// Show a cluster too: where its coordinator listens, which `thalweg launch` prints.
    #[arg(long, value_name = "ADDRESS")]
    cluster: Option<String>,
}

type Page = Response<Cursor<Vec<u8>>>;

pub fn run(args: &Args) -> Result<()> {
    // Loopback only: whoever may see the page may see everything that was measured.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let server = Server::http(address).map_err(|e| {
        anyhow!("listen at {address}: {e}; choose another port with --port, or 0 for a free one")
    })?;
    let at = server.server_addr().to_ip().map_or(address, |ip| ip);
    println!("http://{at}  shows the runs in {}; Ctrl-C ends", args.folder.display());
    let cluster = args.cluster.as_deref().map(|address| launch::onlooker(Some(address))).transpose()?;
    let cluster = cluster.map(Cluster::new);
    let (mut watched, mut system) = (Watched::new(args.folder.clone()), System::new());
    for request in server.incoming_requests() {
        let page = answer(&request, &mut watched, &mut system, cluster.as_ref());
        // A browser that left before its answer came is no trouble of ours.
        let _ = request.respond(page);
    }
    Ok(())
}

fn answer(request: &Request, watched: &mut Watched, system: &mut System, cluster: Option<&Cluster>) -> Page {
    // A page elsewhere may lead its visitor's browser here under a name of its own; it is not served.
    let host = request.headers().iter().find(|h| h.field.equiv("Host")).map(|h| h.value.as_str());
    let name = host.map(|h| h.rsplit_once(':').map_or(h, |(name, _)| name));
    if !matches!(name, Some("127.0.0.1" | "localhost")) {
        return text(403, "ask for 127.0.0.1 or localhost");
    }
    match request.url() {
        "/" => typed(200, "text/html; charset=utf-8", PAGE.to_owned()),
        "/state" => {
            let mut state = watched.state();
            state["system"] = system.now();
            state["cluster"] = cluster.map(Cluster::state).unwrap_or_default();
            typed(200, "application/json", state.to_string())
        }
        url => match url.strip_prefix("/graph/").and_then(|run| watched.graph(run)) {
            Some(page) => typed(200, "text/html; charset=utf-8", page),
            None => text(404, "there is nothing here"),
        },
    }
}

fn text(status: u16, message: &str) -> Page {
    typed(status, "text/plain; charset=utf-8", message.to_owned())
}

fn typed(status: u16, kind: &str, body: String) -> Page {
    let header =
        |name: &str, value: &str| Header::from_bytes(name, value).expect("names and values are plain ASCII");
    Response::from_string(body)
        .with_status_code(status)
        .with_header(header("Content-Type", kind))
        .with_header(header("Cache-Control", "no-store"))
}
