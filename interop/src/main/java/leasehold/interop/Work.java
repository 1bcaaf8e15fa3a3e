package leasehold.interop;

/** Something that gives a result or fails. */
@FunctionalInterface
interface Work {
    Object run() throws Exception;
}
