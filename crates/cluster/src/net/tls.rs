//! Mutual TLS 1.3: both sides show a certificate of the cluster's own authority before a byte of theirs is looked at.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use tokio::net::TcpStream as AsyncSocket;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::error::ClusterError;

/// What a process shows, and whom it believes.
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    control: (TlsConnector, TlsAcceptor), // the same, and that HTTP/2 follows
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tls(..)")
    }
}

impl Tls {
    /// From PEM files: the certificate of this process, its key, and the authority that signed those of all. A
    /// certificate must name the host or address at which the others reach the process.
    pub fn from_files(certificate: &Path, key: &Path, authority: &Path) -> Result<Self, ClusterError> {
        let wrong = |path: &Path, problem: &dyn std::fmt::Display| ClusterError::Certificate {
            path: path.display().to_string(),
            problem: problem.to_string(),
        };
        let certificates = |path: &Path| {
            let read = CertificateDer::pem_file_iter(path).map_err(|e| wrong(path, &e))?;
            let all = read.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(path, &e))?;
            if all.is_empty() { Err(wrong(path, &"it holds no certificate")) } else { Ok(all) }
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots.add(root).map_err(|e| wrong(authority, &e))?;
        }
        let roots = Arc::new(roots);
        let own = certificates(certificate)?;
        let secret = || PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, &e));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let verifier = verifier.map_err(|e| wrong(authority, &e))?;
        let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions);
        let server = server.map_err(|e| wrong(certificate, &e))?.with_client_cert_verifier(verifier);
        let server = server.with_single_cert(own.clone(), secret()?).map_err(|e| wrong(certificate, &e))?;
        let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let client = client.map_err(|e| wrong(certificate, &e))?.with_root_certificates(roots);
        let client = client.with_client_auth_cert(own, secret()?).map_err(|e| wrong(certificate, &e))?;
        let (mut to, mut from) = (client.clone(), server.clone());
        to.alpn_protocols = vec![b"h2".to_vec()];
        from.alpn_protocols = vec![b"h2".to_vec()];
        let control = (Arc::new(to).into(), Arc::new(from).into());
        Ok(Self { client: Arc::new(client), server: Arc::new(server), control })
    }

    pub(super) fn accept(&self, socket: TcpStream) -> io::Result<Encrypted> {
        let connection = ServerConnection::new(self.server.clone()).map_err(io::Error::other)?;
        Encrypted::new(socket, connection.into())
    }

    pub(super) fn connect(&self, socket: TcpStream, address: &str) -> io::Result<Encrypted> {
        let connection =
            ClientConnection::new(self.client.clone(), host(address)?).map_err(io::Error::other)?;
        Encrypted::new(socket, connection.into())
    }

    pub(super) async fn accept_control(
        &self,
        socket: AsyncSocket,
    ) -> io::Result<server::TlsStream<AsyncSocket>> {
        self.control.1.accept(socket).await
    }

    pub(super) async fn connect_control(
        &self,
        socket: AsyncSocket,
        address: &str,
    ) -> io::Result<client::TlsStream<AsyncSocket>> {
        self.control.0.connect(host(address)?, socket).await
    }
}

/// The name that a certificate must have.
fn host(address: &str) -> io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    ServerName::try_from(host.to_owned()).map_err(io::Error::other)
}

/// A socket under TLS that one thread reads while another writes. Neither waits for the socket with the lock held.
#[derive(Debug)]
pub(super) struct Encrypted {
    socket: TcpStream,
    connection: Mutex<Connection>,
    writing: Mutex<()>, // keeps records in the order in which they were made
}

impl Encrypted {
    fn new(mut socket: TcpStream, mut connection: Connection) -> io::Result<Self> {
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(Self { socket, connection: Mutex::new(connection), writing: Mutex::default() })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.lock().reader().read(out) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            // Waits until there is something, which then takes no waiting to read: nobody else reads.
            self.socket.peek(&mut [0])?;
            let mut connection = self.lock();
            connection.read_tls(&mut &self.socket)?;
            connection.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let _order = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records = Vec::new();
        let mut connection = self.lock();
        let n = connection.writer().write(bytes)?;
        while connection.wants_write() {
            connection.write_tls(&mut records)?;
        }
        drop(connection);
        (&self.socket).write_all(&records)?;
        Ok(n)
    }
}
