//! `thalweg certificates`: an authority for one cluster, and a certificate for each of its hosts.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

#[derive(clap::Args)]
pub struct Args {
    /// The folder for the files; none of them may be there already.
    #[arg(long, default_value = "certificates")]
    to: PathBuf,
    /// Names or addresses by which the processes of a host are reached.
    #[arg(required = true)]
    hosts: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.to).with_context(|| format!("cannot make {}", args.to.display()))?;
    let key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "thalweg cluster");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    write(&args.to.join("ca.pem"), &authority.self_signed(&key)?.pem())?;
    // The authority's own key is kept nowhere: another certificate needs another authority.
    let issuer = Issuer::new(authority, key);
    for host in &args.hosts {
        let key = KeyPair::generate()?;
        let mut own =
            CertificateParams::new([host.clone()]).with_context(|| format!("{host:?} is no host"))?;
        own.distinguished_name.push(DnType::CommonName, host);
        let name = host.replace([':', '/'], "-");
        write(&args.to.join(format!("{name}.pem")), &own.signed_by(&key, &issuer)?.pem())?;
        write(&args.to.join(format!("{name}.key")), &key.serialize_pem())?;
        let folder = args.to.display();
        println!("--tls-cert {folder}/{name}.pem --tls-key {folder}/{name}.key --tls-ca {folder}/ca.pem");
    }
    Ok(())
}

/// For this user only.
fn write(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file.write_all(text.as_bytes())?)
}
