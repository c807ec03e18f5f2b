//! The control plane on sockets: gRPC over connections whose other end has proved that it belongs to the cluster.
//!
//! One thread of the process runs all of it. What comes in goes into a machine's inbox, which a thread of the machine
//! empties: nothing here waits for a machine, and a machine that is slow to take things in slows down who says them.
//! What a machine says is put into the outbox of a connection; when that is full, it is lost, as on any network, and
//! said again.
//!
//! With a secret, both sides prove it before HTTP/2 begins, and under TLS both show a certificate. Without either
//! there is nothing to prove: any gRPC client on this host may ask.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Service, async_trait, http};
use tonic::{Code, Request, Response, Status, Streaming};

use super::handshake::{self, GREETING, Unproved};
use super::stream::{LinkId, PATIENCE, Security};
use crate::control::proto::control_client::ControlClient;
use crate::control::proto::control_server::{Control, ControlServer};
use crate::control::{self, LONGEST_FROM_MEMBER, LONGEST_TO_MEMBER, proto};
use crate::error::in_full;
use crate::ids::Peer;
use crate::message::{FromMember, ToMember};
use crate::report::Report;

/// Silence for twice this long ends a connection.
const ALIVE: Duration = Duration::from_millis(500);
/// Messages that wait to be taken in, by one machine, or to be sent, over one connection.
const WAITING: usize = 256;
/// Connections to one coordinator, and calls over one connection.
const MOST_CONNECTIONS: usize = 4096;
const MOST_CALLS: u32 = 8;
/// Bytes of the headers of a call.
const LONGEST_HEADERS: u32 = 16 << 10;

/// What comes in.
pub enum Heard {
    /// A peer says something to the coordinator here.
    FromMember { link: LinkId, from: Peer, message: Box<FromMember>, bytes: usize, outbox: ToMembers },
    /// The coordinator says something.
    ToMember { message: ToMember, bytes: usize },
    /// The coordinator is there, and may be about to say something.
    Reached,
    /// Somebody wants to know how things stand.
    Asked(oneshot::Sender<Option<Report>>),
    /// A connection has ended, or was never made.
    Ended { link: LinkId, why: Option<Unreached> },
}

/// Why a coordinator was not reached.
#[derive(Debug, Clone)]
pub enum Unreached {
    /// The address and what happened. It may be otherwise in a moment.
    Now(String),
    /// The same, and nobody listens there.
    Refused(String),
    /// The same, and somebody listens there but says nothing, as strangers do.
    Silent(String),
    /// The two sides do not know the same secret, and will not by waiting.
    Unproved { address: String, why: Unproved },
}

impl Unreached {
    fn new(address: &str, e: &Failure) -> Self {
        match Unproved::of(&**e) {
            Some(why) => Self::Unproved { address: address.to_owned(), why },
            None => {
                let problem = format!("{address}: {}", in_full(&**e));
                match e.downcast_ref().map(io::Error::kind) {
                    Some(io::ErrorKind::ConnectionRefused) => Self::Refused(problem),
                    Some(handshake::SAYS_NOTHING) => Self::Silent(problem),
                    _ => Self::Now(problem),
                }
            }
        }
    }
}

/// Where a machine's messages go.
pub type Inbox = mpsc::Sender<Heard>;

/// An inbox, and its other end.
pub fn inbox() -> (Inbox, mpsc::Receiver<Heard>) {
    mpsc::channel(WAITING)
}

/// What the coordinator says to one member.
pub type ToMembers = mpsc::Sender<Result<proto::ToMember, Status>>;

/// A member's call to its coordinator; dropping it ends the connection.
pub struct Attendance {
    outbox: mpsc::Sender<proto::FromMember>,
    task: AbortHandle,
}

impl Attendance {
    /// Calls the coordinator at this address.
    pub fn begin(link: LinkId, address: String, security: Security, inbox: Inbox) -> Self {
        let (outbox, said) = mpsc::channel(WAITING);
        let task = runtime().spawn(async move {
            let ended = attend(&address, &security, said, &inbox).await;
            let why = ended.err().map(|e| Unreached::new(&address, &e));
            let _ = inbox.send(Heard::Ended { link, why }).await;
        });
        Self { outbox, task: task.abort_handle() }
    }

    /// The bytes that were said.
    pub fn say(&self, me: Peer, message: &FromMember) -> usize {
        let Some(message) = control::from_member(me, message) else { return 0 };
        let n = message.encoded_len();
        self.outbox.try_send(message).map_or(0, |()| n)
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The bytes that were said to a member.
pub fn tell(outbox: &ToMembers, message: &ToMember) -> usize {
    let message = control::to_member(message);
    let n = message.encoded_len();
    outbox.try_send(Ok(message)).map_or(0, |()| n)
}

/// Lets members call the coordinator whose inbox this is, until it is aborted.
pub fn serve(listener: TcpListener, security: Security, inbox: Inbox) -> io::Result<AbortHandle> {
    listener.set_nonblocking(true)?;
    let _entered = runtime().enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    Ok(runtime().spawn(accept(listener, security, inbox)).abort_handle())
}

/// Asks the coordinator at this address how things stand.
pub fn ask(address: &str, security: &Security, at_most: Duration) -> Result<Report, Unreached> {
    let asked = async {
        let (mut client, _connection) = connect(address, security).await?;
        let report = client.status(proto::StatusRequest {}).await.map_err(|e| hint(security, e))?;
        Ok(control::read_report(report.into_inner())?)
    };
    // The future is run here; the thread of the control plane looks after its socket.
    let answer = runtime().block_on(async { timeout(at_most, asked).await });
    let answer: Result<Report, Failure> = answer.unwrap_or_else(|_| Err(handshake::says_nothing().into()));
    answer.map_err(|e| Unreached::new(address, &e))
}

type Failure = Box<dyn Error + Send + Sync>;

/// The thread that runs the control plane of this process.
fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let built = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = built.expect("the system has a file left");
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("control".into());
        thread.spawn(move || runtime.block_on(std::future::pending::<()>())).expect("and a thread");
        handle
    })
}

async fn attend(
    address: &str,
    security: &Security,
    said: mpsc::Receiver<proto::FromMember>,
    inbox: &Inbox,
) -> Result<(), Failure> {
    let (mut client, _connection) = connect(address, security).await?;
    inbox.send(Heard::Reached).await?;
    let answer = client.attend(ReceiverStream::new(said)).await.map_err(|e| hint(security, e))?;
    let mut told = answer.into_inner();
    while let Some(message) = told.message().await.map_err(|e| plainly(&e))? {
        let bytes = message.encoded_len();
        inbox.send(Heard::ToMember { message: control::read_to_member(message)?, bytes }).await?;
    }
    Ok(())
}

/// A client, and what keeps its connection alive until it is dropped.
async fn connect(
    address: &str,
    security: &Security,
) -> Result<(ControlClient<Connection>, JoinSet<()>), Failure> {
    let reached = timeout(PATIENCE, TcpStream::connect(address)).await;
    let socket = reached.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let proved = timeout(PATIENCE, prove(socket, address, security)).await;
    let stream = proved.unwrap_or_else(|_| Err(handshake::says_nothing()))?;
    let mut http = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new()).keep_alive_interval(ALIVE).keep_alive_timeout(ALIVE);
    http.max_header_list_size(LONGEST_HEADERS);
    let (sender, connection) = http.handshake(TokioIo::new(stream)).await?;
    let mut running = JoinSet::new();
    running.spawn(async move { drop(connection.await) });
    let origin = http::Uri::builder().scheme("http").authority(address).path_and_query("/").build()?;
    let client = ControlClient::with_origin(Connection(sender), origin);
    Ok((client.max_decoding_message_size(LONGEST_TO_MEMBER), running))
}

/// The sending half of one HTTP/2 connection, as what a gRPC client speaks through.
#[derive(Clone)]
struct Connection(hyper::client::conn::http2::SendRequest<tonic::body::Body>);

impl Service<http::Request<tonic::body::Body>> for Connection {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Any connection on which the proof is over.
trait Proved: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Proved for T {}

/// The side that connects: certificates first, where there are any, then the secret.
async fn prove(socket: TcpStream, address: &str, security: &Security) -> io::Result<Box<dyn Proved>> {
    #[cfg(not(feature = "tls"))]
    let _ = address;
    socket.set_nodelay(true)?;
    if security.is_open() && is_greeted(&socket).await? {
        return Err(Unproved::Wanted.into());
    }
    #[cfg(feature = "tls")]
    let mut stream: Box<dyn Proved> = match &security.tls {
        Some(tls) => Box::new(tls.connect_control(socket, address).await?),
        None => Box::new(socket),
    };
    #[cfg(not(feature = "tls"))]
    let mut stream: Box<dyn Proved> = Box::new(socket);
    if !security.secret.is_empty() {
        handshake::connect_async(&mut stream, &security.secret).await?;
    }
    Ok(stream)
}

/// Whether the other side begins with a challenge. Both protocols begin with what the side says that was connected to.
async fn is_greeted(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0; GREETING.len()];
    let n = socket.peek(&mut first).await?;
    Ok(first[..n] == GREETING)
}

/// The side that was connected to.
async fn check(socket: TcpStream, security: &Security) -> io::Result<Box<dyn Proved>> {
    socket.set_nodelay(true)?;
    #[cfg(feature = "tls")]
    let mut stream: Box<dyn Proved> = match &security.tls {
        Some(tls) => Box::new(tls.accept_control(socket).await?),
        None => Box::new(socket),
    };
    #[cfg(not(feature = "tls"))]
    let mut stream: Box<dyn Proved> = Box::new(socket);
    if !security.secret.is_empty() {
        handshake::accept_async(&mut stream, &security.secret).await?;
    }
    Ok(stream)
}

async fn accept(listener: tokio::net::TcpListener, security: Security, inbox: Inbox) {
    let mut connections = JoinSet::new(); // they end with this task
    loop {
        match listener.accept().await {
            Ok((socket, _)) if connections.len() < MOST_CONNECTIONS => {
                connections.spawn(answer(socket, security.clone(), inbox.clone()));
            }
            Ok(_) => {}
            // Such as too many open files: some may be closed in a moment.
            Err(_) => tokio::time::sleep(ALIVE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Answers the calls over one connection. Whoever cannot prove to belong here loses it, and nothing else happens; so does
/// whoever sends what is no HTTP/2, or nothing at all.
async fn answer(socket: TcpStream, security: Security, inbox: Inbox) {
    let Ok(Ok(stream)) = timeout(PATIENCE, check(socket, &security)).await else { return };
    let service = ControlServer::new(Answers { inbox }).max_decoding_message_size(LONGEST_FROM_MEMBER);
    let called = Arc::new(AtomicBool::new(false));
    let calls = called.clone();
    let call = service_fn(move |request| -> BoxedAnswer {
        calls.store(true, Ordering::Relaxed);
        service.clone().call(request)
    });
    let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new()).keep_alive_interval(ALIVE).keep_alive_timeout(ALIVE);
    http.max_concurrent_streams(MOST_CALLS).max_header_list_size(LONGEST_HEADERS);
    let mut running = JoinSet::new();
    let connection = http.serve_connection(TokioIo::new(stream), call);
    running.spawn(async move { drop(connection.await) });
    running.spawn(tokio::time::sleep(PATIENCE));
    while running.join_next().await.is_some() && called.load(Ordering::Relaxed) {}
}

type BoxedAnswer = tonic::codegen::BoxFuture<http::Response<tonic::body::Body>, Infallible>;

/// The coordinator's side of the calls over one connection.
struct Answers {
    inbox: Inbox,
}

#[async_trait]
impl Control for Answers {
    type AttendStream = ReceiverStream<Result<proto::ToMember, Status>>;

    async fn attend(
        &self,
        request: Request<Streaming<proto::FromMember>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let (outbox, told) = mpsc::channel(WAITING);
        let (inbox, link) = (self.inbox.clone(), LinkId::next());
        tokio::spawn(async move {
            let said = request.into_inner();
            if let Err(refused) = take_in(said, link, &outbox, &inbox).await {
                let _ = outbox.try_send(Err(refused));
            }
            let _ = inbox.send(Heard::Ended { link, why: None }).await;
        });
        Ok(Response::new(ReceiverStream::new(told)))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Result<Response<proto::Report>, Status> {
        let (answer, report) = oneshot::channel();
        let asked = self.inbox.send(Heard::Asked(answer)).await;
        let report = asked.ok().map(|()| report);
        let report = match report {
            Some(report) => report.await.ok().flatten(),
            None => None,
        };
        let report = report.ok_or_else(|| Status::unavailable("this process is not the coordinator now"))?;
        Ok(Response::new(control::report(&report)))
    }
}

/// Until the call ends, or something comes that means nothing.
async fn take_in(
    mut said: Streaming<proto::FromMember>,
    link: LinkId,
    outbox: &ToMembers,
    inbox: &Inbox,
) -> Result<(), Status> {
    while let Some(message) = said.message().await? {
        let bytes = message.encoded_len();
        let read = control::read_from_member(message);
        let (from, message) = read.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let heard =
            Heard::FromMember { link, from, message: Box::new(message), bytes, outbox: outbox.clone() };
        inbox.send(heard).await.map_err(|_| Status::unavailable("this process ends"))?;
    }
    Ok(())
}

/// What a status says and the first cause of it, without the words of the library.
fn plainly(status: &Status) -> String {
    let causes = std::iter::successors(status.source(), |&cause| cause.source());
    let (said, cause) = (status.message(), causes.last().map(ToString::to_string));
    cause.filter(|cause| !said.contains(cause)).map_or(said.into(), |cause| format!("{said}: {cause}"))
}

/// A peer that answers in another language most often wants a proof first.
fn hint(security: &Security, status: Status) -> Failure {
    // Whether its answer or the end of the connection is seen first is a matter of luck; the latter has no cause.
    let garbled = status.source().is_some() || status.code() == Code::Unknown;
    if !garbled || !security.secret.is_empty() {
        return plainly(&status).into();
    }
    let why = plainly(&status);
    let asks = "does it want a secret (THALWEG_SECRET) or a certificate (THALWEG_TLS_CERT), or is it another program?";
    format!("{why}; {asks}").into()
}
