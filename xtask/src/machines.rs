//! `cargo xtask machines [avx512|neon] [--only TEST] [--bochs PROGRAM] [--cpu MODEL] [--kernel FILE]`: the kernels on
//! CPUs that this machine does not have.
//!
//! AVX-512 and AMX: the tests of `thalweg-kernels`, as the only program of a machine that Bochs emulates, with a Linux
//! kernel of the distribution. NEON: the tests from `core` up to the table of ops, by QEMU. An emulator says whether
//! results are right; it says nothing about speed. Needs programs that `check` does not; a missing one is named.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::check::{succeed, test_binary};
use crate::{root, value};

/// A CPU with everything that the kernels know of x86-64. Bochs lists others with `--help cpu`.
const CPU: &str = "sapphire_rapids";

const ARM: &str = "aarch64-unknown-linux-gnu";

/// Runs the tests and turns the machine off.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for flag in avx2 avx512f amx_tile amx_bf16; do grep -q -m1 -w $flag /proc/cpuinfo && echo "guest: has $flag"; done
/undisturbed /test --test-threads=1 TEST
echo "guest: status $?"
sleep 1
reboot -f
"#;

/// Runs a program whose threads take turns only where they wait: see [`BOOT`]. Few builds of busybox have `chrt`.
const UNDISTURBED: &str = "#include <sched.h>
#include <unistd.h>
int main(int n, char **args) {
    struct sched_param priority = {50};
    sched_setscheduler(0, SCHED_FIFO, &priority);
    execv(args[1], args + 1);
    return 127;
}
";

/// ACPI is off, since turning it on crashes Bochs on the newer models; hence no power switch, and a reboot by triple
/// fault ends it. Bochs lacks XFD, without which Linux gives AMX to nobody unless it is told (from 6.15 on) that feature
/// 324 is there; tiles are then not kept over a change of threads, so none may happen while a thread uses them.
const BOOT: &str = "default test
prompt 0
label test
  kernel /vmlinuz
  append initrd=/initrd console=ttyS0 quiet loglevel=3 panic=-1 acpi=off reboot=t mitigations=off nokaslr \
no_timer_check clocksource=tsc tsc=reliable cryptomgr.notests setcpuid=324
";

const BOCHSRC: &str = r#"display_library: rfb, options="timeout=0"
memory: guest=1024, host=1024
romimage: file=BIOS
vgaromimage: file=VGA
cpu: model=CPU, count=1, ips=50000000, reset_on_triple_fault=0, ignore_bad_msrs=1
clock: sync=none
ata0-master: type=cdrom, path=boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=serial.txt
log: bochs.txt
panic: action=fatal
"#;

pub fn run(args: &[&str]) -> Result<()> {
    match args.first() {
        Some(&"avx512") => avx512(args),
        Some(&"neon") => neon(args),
        _ => avx512(args).and_then(|()| neon(args)),
    }
}

/// The tests of the kernels inside of Bochs.
fn avx512(args: &[&str]) -> Result<()> {
    let bochs = value(args, "--bochs").unwrap_or("bochs");
    let cpu = value(args, "--cpu").unwrap_or(CPU);
    let share = std::env::var("BXSHARE").unwrap_or("/usr/share/bochs".to_owned());
    let mut missing = Missing::default();
    missing.program(bochs, "bochs");
    missing.program("xorriso", "xorriso");
    let bios = missing.file(&[&format!("{share}/BIOS-bochs-latest")], "bochsbios; BXSHARE names its folder");
    let vga = [&format!("{share}/VGABIOS-lgpl-latest"), "/usr/share/vgabios/vgabios.bin"];
    let vga = missing.file(&vga, "vgabios");
    let parts = CdParts::find(&mut missing, value(args, "--kernel"));
    missing.refuse()?;

    // The guest has no libraries.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.env("CARGO_BUILD_TARGET", "x86_64-unknown-linux-gnu");
    let tests = test_binary("thalweg-kernels", cargo.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let dir = root().join("target/machines");
    let _ = std::fs::remove_dir_all(&dir);
    parts.write(&dir, Path::new(&tests), value(args, "--only").unwrap_or(""))?;
    let rc = BOCHSRC.replace("CPU", cpu).replace("BIOS", &bios.to_string_lossy());
    std::fs::write(dir.join("bochsrc.txt"), rc.replace("VGA", &vga.to_string_lossy()))?;

    println!("{cpu} begins; what it says is in target/machines/serial.txt (half an hour for all tests)");
    // The end by triple fault is an error to Bochs; what counts is what the guest said.
    let output = Command::new(bochs).args(["-q", "-f", "bochsrc.txt"]).current_dir(&dir).output()?;
    let said = std::fs::read(dir.join("serial.txt")).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).replace('\r', "");
    println!("{said}");
    ensure!(!said.is_empty(), "Bochs did not start:\n{}", String::from_utf8_lossy(&output.stdout));
    // Seen once in a dozen starts: a kernel that stumbles over the emulator.
    ensure!(said.contains("guest: status"), "the guest did not come to its end; try again");
    ensure!(said.contains("guest: has avx512f"), "{cpu} has no AVX-512");
    ensure!(said.contains("guest: status 0"), "the tests failed on {cpu}");
    Ok(())
}

/// What a CD is made of that boots a kernel with the tests.
struct CdParts {
    kernel: PathBuf,
    busybox: PathBuf,
    /// The boot loader and its one module.
    isolinux: PathBuf,
    ldlinux: PathBuf,
}

impl CdParts {
    fn find(missing: &mut Missing, kernel: Option<&str>) -> Self {
        let isolinux = ["/usr/lib/ISOLINUX/isolinux.bin", "/usr/share/syslinux/isolinux.bin"];
        let ldlinux = ["/usr/lib/syslinux/modules/bios/ldlinux.c32", "/usr/share/syslinux/ldlinux.c32"];
        Self {
            kernel: missing.file(&[kernel.unwrap_or("/vmlinuz")], "linux-image-amd64; or give --kernel"),
            busybox: missing.file(&["/usr/bin/busybox", "/bin/busybox"], "busybox-static"),
            isolinux: missing.file(&isolinux, "isolinux"),
            ldlinux: missing.file(&ldlinux, "syslinux-common"),
        }
    }

    /// Writes `boot.iso` into the folder.
    fn write(&self, dir: &Path, tests: &Path, only: &str) -> Result<()> {
        let (guest, cd) = (dir.join("guest"), dir.join("cd"));
        for folder in ["guest/bin", "guest/proc", "guest/dev", "guest/tmp", "cd"] {
            std::fs::create_dir_all(dir.join(folder))?;
        }
        let copies = [
            (tests, guest.join("test")),
            (&self.busybox, guest.join("bin/busybox")),
            (&self.kernel, cd.join("vmlinuz")),
            (&self.isolinux, cd.join("isolinux.bin")),
            (&self.ldlinux, cd.join("ldlinux.c32")),
        ];
        for (from, to) in copies {
            std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        std::fs::write(guest.join("init"), INIT.replace("TEST", only))?;
        std::fs::write(cd.join("isolinux.cfg"), BOOT)?;
        std::fs::write(dir.join("undisturbed.c"), UNDISTURBED)?;
        let options = ["-static", "-o", "guest/undisturbed", "undisturbed.c"];
        succeed(Command::new("cc").args(options).current_dir(dir))?;
        let pack = "chmod +x init && find . | bin/busybox cpio -o -H newc > ../cd/initrd";
        succeed(Command::new("sh").args(["-c", pack]).current_dir(&guest))?;
        let options = "-as mkisofs -quiet -r -o boot.iso -b isolinux.bin -c boot.cat -no-emul-boot \
                       -boot-load-size 4 -boot-info-table cd";
        succeed(Command::new("xorriso").args(options.split_whitespace()).current_dir(dir))
    }
}

/// The tests from `core` to `tensor` by QEMU, and the whole command compiled.
fn neon(args: &[&str]) -> Result<()> {
    let mut missing = Missing::default();
    missing.program("qemu-aarch64", "qemu-user");
    missing.program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu and libc6-dev-arm64-cross");
    let libdir = Command::new("rustc").args(["--print", "target-libdir", "--target", ARM]).output()?.stdout;
    let libdir = String::from_utf8(libdir)?;
    missing.file(&[libdir.trim()], &format!("`rustup target add {ARM}`"));
    missing.refuse()?;
    let cargo = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(args).current_dir(root());
        command
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static");
        succeed(&mut command)
    };
    cargo(&["check", "-p", "thalweg-cli", "--target", ARM])?;
    let tests = ["-p", "thalweg-core", "-p", "thalweg-kernels", "-p", "thalweg-tensor", "--lib", "--tests"];
    let only: Vec<&str> = value(args, "--only").into_iter().collect();
    cargo(&[&["test", "--target", ARM], &tests[..], &only].concat())
}

/// What is needed and not there.
#[derive(Default)]
struct Missing(Vec<String>);

impl Missing {
    fn program(&mut self, name: &str, package: &str) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join(name).is_file()) {
            self.0.push(format!("{name} ({package})"));
        }
    }

    /// The first of these that is there.
    fn file(&mut self, places: &[&str], package: &str) -> PathBuf {
        let found = places.iter().find(|p| Path::new(p).exists());
        if found.is_none() {
            self.0.push(format!("{} ({package})", places[0]));
        }
        PathBuf::from(found.unwrap_or(&places[0]))
    }

    fn refuse(self) -> Result<()> {
        ensure!(self.0.is_empty(), "missing, with the Debian package that has it: {}", self.0.join(", "));
        Ok(())
    }
}
