// The model @name@ as a module of an app: include(":@name@") in settings.gradle.kts, and
// implementation(project(":@name@")) in the app's dependencies.
plugins {
    id("com.android.library")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "@identifier@"
    compileSdk = 35

    defaultConfig {
        minSdk = 21
        consumerProguardFiles("consumer-rules.pro")
        ndk { abiFilters += listOf(@abis@) }
        externalNativeBuild { cmake { arguments += "-DANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES=ON" } }
    }

    externalNativeBuild { cmake { path = file("src/main/cpp/CMakeLists.txt") } }

    // CMake's imported library is the file in jniLibs.
    packaging { jniLibs { pickFirsts += "**/lib@name@.so" } }
}

kotlin { jvmToolchain(17) }
