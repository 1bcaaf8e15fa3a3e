package leasehold.interop;

import java.lang.reflect.Method;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFuture;

/** A call as text, {@code object.method(arguments)}: the method of that name whose parameters the arguments fit. */
record Call(String object, String method, List<String> arguments) {
    static Call of(String text) {
        // Names may have dots and parentheses, arguments have neither.
        int dot = text.lastIndexOf(").") + 1;
        int open = text.indexOf('(', dot);
        if (dot == 0 || open < 0 || !text.endsWith(")")) {
            throw new IllegalArgumentException("not a call: " + text);
        }
        String arguments = text.substring(open + 1, text.length() - 1);
        List<String> list = arguments.isEmpty() ? List.of() : List.of(arguments.split(", *"));
        return new Call(text.substring(0, dot), text.substring(dot + 1, open), list);
    }

    /** Its result on this object; that of the future, if it gives one. */
    Object on(Object target) throws Exception {
        Method[] methods = target.getClass().getMethods();
        // A number is a duration only where it can be nothing else.
        for (boolean durations : new boolean[] {false, true}) {
            for (Method candidate : methods) {
                boolean fits = durations || !List.of(candidate.getParameterTypes()).contains(Duration.class);
                Object[] values = fits ? values(candidate) : null;
                if (values != null) {
                    candidate.setAccessible(true);
                    Object result = candidate.invoke(target, values);
                    return result instanceof RFuture<?> future ? future.toCompletableFuture().get() : result;
                }
            }
        }
        throw new NoSuchMethodException(this + " of " + target.getClass().getSimpleName());
    }

    /** The arguments as this method takes them; null if it is another one. */
    private Object[] values(Method candidate) {
        Class<?>[] types = candidate.getParameterTypes();
        boolean gathers = types.length == 1 && types[0] == List.class && arguments.size() > 1;
        if (!candidate.getName().equals(method) || (!gathers && types.length != arguments.size())) {
            return null;
        }
        if (gathers) {
            return new Object[] {arguments};
        }
        var values = new Object[types.length];
        for (int i = 0; i < types.length; i++) {
            values[i] = value(types[i], arguments.get(i));
            if (values[i] == null) {
                return null;
            }
        }
        return values;
    }

    private static Object value(Class<?> type, String text) {
        boolean number = text.matches("-?\\d{1,18}");
        if (type == TimeUnit.class) {
            return text.equals("ms") ? TimeUnit.MILLISECONDS : text.equals("s") ? TimeUnit.SECONDS : null;
        }
        if (type == String.class) {
            return number ? null : text;
        }
        if (!number) {
            return null;
        }
        if (type == int.class) {
            return Integer.parseInt(text);
        }
        if (type == Duration.class) {
            return Duration.ofMillis(Long.parseLong(text));
        }
        return type == long.class ? Long.parseLong(text) : null;
    }
}
