package leasehold.interop;

import java.lang.reflect.InvocationTargetException;
import java.util.concurrent.ExecutionException;

/** Results of calls as text on one line. */
final class Result {
    private Result() {
    }

    static String of(Work work) {
        try {
            return String.valueOf(work.run());
        } catch (Throwable thrown) {
            return "throws " + text(bare(thrown));
        }
    }

    /** Without what reflection and futures wrap around it. */
    private static Throwable bare(Throwable thrown) {
        boolean wraps = thrown instanceof InvocationTargetException || thrown instanceof ExecutionException;
        return wraps && thrown.getCause() != null ? bare(thrown.getCause()) : thrown;
    }

    private static String text(Throwable thrown) {
        String text = thrown.getClass().getSimpleName() + ": " + thrown.getMessage();
        if (thrown.getCause() != null) {
            text += " / cause " + thrown.getCause().getClass().getSimpleName() + ": " + thrown.getCause().getMessage();
        }
        return text.replace('\n', ' ');
    }
}
