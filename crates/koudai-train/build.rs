//! Programs and tests find libtorch where it was found when they were built.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(folder) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}/lib");
    }
}
