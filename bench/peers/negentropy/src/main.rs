//! Reconciles two files of IDs with the `negentropy` crate (vector storage, no frame limit) and
//! prints one line of JSON: what every run cost in processor time, bytes and messages.
//!
//! usage: reconcile-peer INITIATOR_FILE RESPONDER_FILE RUNS
//!
//! A file is records of 40 bytes: the timestamp as a little-endian 64-bit integer, then the hash.
//! Both storages are built and sealed before the clock starts.

use negentropy::{Id, Negentropy, NegentropyStorageVector, Storage};
use std::env;
use std::error::Error;
use std::fs;
use std::process::ExitCode;

const RECORD_BYTES: usize = 40;
const NO_FRAME_LIMIT: u64 = 0;

/// What one reconciliation cost and found; the differences as count and XOR.
struct Run {
    cpu_seconds: f64,
    bytes: [usize; 2],
    messages: [usize; 2],
    have: (usize, [u8; 32]),
    need: (usize, [u8; 32]),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("reconcile-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<String, Box<dyn Error>> {
    let [initiator, responder, runs] = arguments else {
        return Err("usage: reconcile-peer INITIATOR_FILE RESPONDER_FILE RUNS".into());
    };
    let (initiator, responder) = (load(initiator)?, load(responder)?);
    let mut done = Vec::new();
    for _ in 0..runs.parse::<usize>()?.max(1) {
        done.push(reconcile(&initiator, &responder)?);
    }
    Ok(report(&done))
}

fn load(path: &str) -> Result<NegentropyStorageVector, Box<dyn Error>> {
    let bytes = fs::read(path)?;
    if bytes.len() % RECORD_BYTES != 0 {
        return Err(format!("{path} is not a whole number of {RECORD_BYTES}-byte records").into());
    }
    let mut storage = NegentropyStorageVector::with_capacity(bytes.len() / RECORD_BYTES);
    for record in bytes.chunks_exact(RECORD_BYTES) {
        let (timestamp, hash) = record.split_at(8);
        let timestamp = u64::from_le_bytes(timestamp.try_into()?);
        storage.insert(timestamp, Id::from_byte_array(hash.try_into()?))?;
    }
    storage.seal()?;
    Ok(storage)
}

fn reconcile(
    ours: &NegentropyStorageVector,
    theirs: &NegentropyStorageVector,
) -> Result<Run, Box<dyn Error>> {
    let (mut bytes, mut messages) = ([0, 0], [0, 0]);
    let (mut have, mut need) = (Vec::new(), Vec::new());
    let start = cpu_seconds();
    let mut initiator = Negentropy::new(Storage::Borrowed(ours), NO_FRAME_LIMIT)?;
    let mut responder = Negentropy::new(Storage::Borrowed(theirs), NO_FRAME_LIMIT)?;
    let mut next = Some(initiator.initiate()?);
    while let Some(query) = next {
        count(&mut bytes, &mut messages, 0, &query);
        let answer = responder.reconcile(&query)?;
        count(&mut bytes, &mut messages, 1, &answer);
        next = initiator.reconcile_with_ids(&answer, &mut have, &mut need)?;
    }
    let cpu_seconds = cpu_seconds() - start;
    Ok(Run {
        cpu_seconds,
        bytes,
        messages,
        have: summary(&have),
        need: summary(&need),
    })
}

fn count(bytes: &mut [usize; 2], messages: &mut [usize; 2], way: usize, payload: &[u8]) {
    bytes[way] += payload.len();
    messages[way] += 1;
}

fn summary(ids: &[Id]) -> (usize, [u8; 32]) {
    let mut xor = [0; 32];
    for id in ids {
        for (into, byte) in xor.iter_mut().zip(id.iter()) {
            *into ^= byte;
        }
    }
    (ids.len(), xor)
}

fn report(runs: &[Run]) -> String {
    let last = &runs[runs.len() - 1];
    let seconds: Vec<String> = runs
        .iter()
        .map(|run| format!("{:.9}", run.cpu_seconds))
        .collect();
    format!(
        "{{\"cpu_seconds\": [{}], \"bytes\": {:?}, \"messages\": {:?}, \
         \"have\": {}, \"have_xor\": \"{}\", \"need\": {}, \"need_xor\": \"{}\"}}",
        seconds.join(", "),
        last.bytes,
        last.messages,
        last.have.0,
        hex(&last.have.1),
        last.need.0,
        hex(&last.need.1),
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Processor time of this process, user and system.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that outlives the call.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(code, 0, "the system has no clock of processor time");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
