//! Writing beside and renaming: a file has its name only when all of it is on disk.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file on its way to a name. Until [`PartialFile::finish`] its bytes lie beside it, under the name
/// followed by `.partial-` and this process's id; dropping it removes them.
pub struct PartialFile {
    path: PathBuf,
    partial: PathBuf,
    out: BufWriter<File>,
}

impl PartialFile {
    /// Starts a file that will appear at `path`.
    pub fn create(path: &Path) -> io::Result<PartialFile> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let partial = path.with_file_name(name);
        let out = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
        Ok(PartialFile { path: path.into(), partial, out })
    }

    /// Where it will appear.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Flushes to disk, and says where the bytes lie until [`PartialFile::finish`]: to look at them
    /// before they get the name.
    pub fn sync(&mut self) -> io::Result<&Path> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        Ok(&self.partial)
    }

    /// Flushes to disk and gives the file its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.sync()?;
        std::fs::rename(&self.partial, &self.path)
    }

    /// Writes a whole file.
    pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = PartialFile::create(path)?;
        file.write_all(bytes)?;
        file.finish()
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Seek for PartialFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.out.seek(to)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After a rename there is nothing left to remove.
        let _ = std::fs::remove_file(&self.partial);
    }
}
