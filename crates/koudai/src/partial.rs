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
    /// Starts a file that will appear at `path`, behind it if it is a link. Fails if something is there
    /// that isn't a regular file: a device or a folder isn't to be replaced.
    pub fn create(path: &Path) -> io::Result<PartialFile> {
        let path = &match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => {
                return Err(io::Error::other("it is there already and no regular file"));
            }
            Ok(_) if path.is_symlink() => std::fs::canonicalize(path)?,
            _ => path.to_owned(),
        };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let partial = path.with_file_name(name);
        let out = BufWriter::with_capacity(1 << 20, File::create(&partial)?);
        Ok(PartialFile { path: path.clone(), partial, out })
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_replaced_and_links_stay_links() {
        let folder = std::env::temp_dir().join(format!("koudai-partial-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        PartialFile::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        PartialFile::write(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        for special in [folder.as_path(), Path::new("/dev/null")] {
            let error = PartialFile::create(special).err().unwrap();
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
        drop(PartialFile::create(&file).unwrap());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
