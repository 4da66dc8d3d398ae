package @identifier@

import java.nio.ByteBuffer

/** The functions of @name@_jni.c. */
internal object @class@Native {
    init {
        System.loadLibrary("@name@")
        System.loadLibrary("@name@_jni")
    }

    external fun create(threads: Int): Long

    external fun destroy(context: Long)

    external fun reset(context: Long)
@externals@
}
