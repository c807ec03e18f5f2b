//! A connection whose other end has proved that it belongs to the cluster. It can be read and written at the same time.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::handshake::{self, Secret};
#[cfg(feature = "tls")]
use super::tls::{Encrypted, Tls};

/// How long a peer may take to prove itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The number of a connection in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkId(u64);

impl LinkId {
    /// One that no other connection has.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// How peers prove that they belong to the cluster: by its secret, by certificates, or by both.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// The cluster's secret. Empty is allowed on loopback and under TLS.
    pub secret: Secret,
    /// Certificates.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<Tls>>,
}

impl Security {
    /// By a secret alone.
    pub fn by(secret: Secret) -> Self {
        Self {
            secret,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Whether anybody who reaches a port may speak.
    pub fn is_open(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return false;
        }
        self.secret.is_empty()
    }
}

/// The connection.
#[derive(Debug, Clone)]
pub struct Stream(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Plain(Arc<TcpStream>),
    #[cfg(feature = "tls")]
    Encrypted(Arc<Encrypted>),
}

impl Stream {
    /// The side that was connected to.
    pub fn accept(socket: TcpStream, security: &Security) -> io::Result<Self> {
        Self::proved(
            socket,
            |socket| {
                #[cfg(feature = "tls")]
                if let Some(tls) = &security.tls {
                    return Ok(Self(Kind::Encrypted(Arc::new(tls.accept(socket)?))));
                }
                Ok(Self(Kind::Plain(Arc::new(socket))))
            },
            |stream| handshake::accept(stream, &security.secret),
        )
    }

    /// The side that connects to `address`.
    pub fn connect(socket: TcpStream, address: &str, security: &Security) -> io::Result<Self> {
        #[cfg(not(feature = "tls"))]
        let _ = address;
        Self::proved(
            socket,
            |socket| {
                #[cfg(feature = "tls")]
                if let Some(tls) = &security.tls {
                    return Ok(Self(Kind::Encrypted(Arc::new(tls.connect(socket, address)?))));
                }
                Ok(Self(Kind::Plain(Arc::new(socket))))
            },
            |stream| handshake::connect(stream, &security.secret),
        )
    }

    /// Certificates first, where there are any, then the secret; all of it soon.
    fn proved(
        socket: TcpStream,
        begin: impl FnOnce(TcpStream) -> io::Result<Self>,
        prove: impl FnOnce(&mut Hurried<'_>) -> io::Result<()>,
    ) -> io::Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        let mut stream = begin(socket)?;
        stream.soon(prove)?;
        Ok(stream)
    }

    /// Whether the other side has an address of this host.
    pub fn is_on_this_host(&self) -> bool {
        let addresses = self.socket().peer_addr().and_then(|peer| Ok((peer, self.socket().local_addr()?)));
        addresses.is_ok_and(|(peer, own)| peer.ip() == own.ip())
    }

    /// Does something for which a peer has as long as for proving itself, all in all.
    pub fn soon<T>(&mut self, f: impl FnOnce(&mut Hurried<'_>) -> io::Result<T>) -> io::Result<T> {
        let result = f(&mut Hurried { stream: self, until: Instant::now() + PATIENCE })?;
        self.socket().set_read_timeout(None)?;
        Ok(result)
    }

    /// Reading comes back with nothing after so long.
    pub fn look_up_every(&self, time: Duration) -> io::Result<()> {
        self.socket().set_read_timeout(Some(time))
    }

    /// Ends it for both sides.
    pub fn shutdown(&self) {
        let _ = self.socket().shutdown(Shutdown::Both);
    }

    fn socket(&self) -> &TcpStream {
        match &self.0 {
            Kind::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Kind::Encrypted(encrypted) => encrypted.socket(),
        }
    }
}

/// A connection whose other side has until then to say what it has to.
pub struct Hurried<'a> {
    stream: &'a mut Stream,
    until: Instant,
}

impl Read for Hurried<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.stream.socket().set_read_timeout(Some(left))?;
        self.stream.read(out)
    }
}

impl Write for Hurried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => (&**socket).read(out),
            #[cfg(feature = "tls")]
            Kind::Encrypted(encrypted) => encrypted.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => (&**socket).write(bytes),
            #[cfg(feature = "tls")]
            Kind::Encrypted(encrypted) => encrypted.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0 {
            Kind::Plain(socket) => (&**socket).write_vectored(parts),
            #[cfg(feature = "tls")]
            Kind::Encrypted(encrypted) => match parts.iter().find(|p| !p.is_empty()) {
                Some(part) => encrypted.write(part),
                None => Ok(0),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
