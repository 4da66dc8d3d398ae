package @identifier@

import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * The model @name@ with its working memory. It serves one call at a time; threads make models of their own.
 *
 * Tensors are direct buffers in the order of the processor's bytes, as [buffer] makes them, compact and
 * row-major, from the beginning of the buffer. Calls throw an IllegalArgumentException for a buffer that does
 * not fit, and an IllegalStateException with the runtime's message for other failures.
 *
 * @param threads the most threads that a run uses; 0: one for each core
 */
class @class@(threads: Int = 0) : AutoCloseable {
    private var context: Long = @class@Native.create(threads)

    private fun open(): Long {
        check(context != 0L) { "the model is closed" }
        return context
    }
@methods@

    /** Gives all states their initial values. */
    fun reset() = @class@Native.reset(open())

    override fun close() {
        val closed = context
        context = 0
        if (closed != 0L) @class@Native.destroy(closed)
    }

    companion object {
        /** A buffer for [elements] elements of [bytes] bytes each, all zero. */
        @JvmStatic
        fun buffer(elements: Int, bytes: Int): ByteBuffer =
            ByteBuffer.allocateDirect(elements * bytes).order(ByteOrder.nativeOrder())
    }
}
