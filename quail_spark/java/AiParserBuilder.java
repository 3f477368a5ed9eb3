package org.quailspark;

import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.internal.SessionState;
import scala.runtime.AbstractFunction2;

/** (SparkSession, parser) => parser, as SparkSessionExtensions wants it: for sessions that are built from now on. */
public class AiParserBuilder extends AbstractFunction2 {
  private final Function frontEnd;
  private final Pattern mention;

  /** `mention`: a pattern, without regard to case, of texts that the front end has to see. */
  public AiParserBuilder(Function frontEnd, String mention) {
    this.frontEnd = frontEnd;
    this.mention = Pattern.compile(mention, Pattern.CASE_INSENSITIVE);
  }

  public Object apply(Object session, Object parser) {
    return Proxy.newProxyInstance(
        ParserInterface.class.getClassLoader(),
        new Class[] {ParserInterface.class},
        new AiParser((ParserInterface) parser, frontEnd, mention));
  }

  /** The same for a session that has its parser already; nothing where it has ours. */
  public void replaceIn(Object state) throws Exception {
    Field field = SessionState.class.getDeclaredField("sqlParser");
    field.setAccessible(true);
    Object parser = field.get(state);
    if (!(Proxy.isProxyClass(parser.getClass()) && Proxy.getInvocationHandler(parser) instanceof AiParser)) {
      field.set(state, apply(null, parser));
    }
  }
}
