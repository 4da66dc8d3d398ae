// swift-tools-version:5.5
// The model @name@: add this folder as a package, and import @name@.
import PackageDescription

let package = Package(
    name: "@name@",
    platforms: [.iOS(.v15), .macOS(.v11)],
    products: [.library(name: "@name@", targets: ["@name@"])],
    targets: [.binaryTarget(name: "@name@", path: "@name@.xcframework")]
)
